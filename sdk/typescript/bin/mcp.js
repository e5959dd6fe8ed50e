#!/usr/bin/env node
// Serves the MCP tools of microsandbox-mcp on stdin and stdout.
"use strict";

require("./start.js").start(["mcp", "--dialect", "microsandbox", ...process.argv.slice(2)]);
