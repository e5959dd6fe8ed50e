"""Names that programs import from the extension module of the other product."""

from ._backend import resolved_cli_msb_path, resolved_msb_path
from ._fs import VolumeFs

__all__ = ["VolumeFs", "resolved_cli_msb_path", "resolved_msb_path"]
