//! What MCP clients do, through the real binary.

mod opensandbox;
