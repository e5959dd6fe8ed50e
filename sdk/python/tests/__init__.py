"""Tests of the Python SDK. They need `MSB_PATH`; the state directory is a temporary one."""
