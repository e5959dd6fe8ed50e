#!/usr/bin/env node
// Runs the `msb` executable with the arguments of this command.
"use strict";

require("./start.js").start(process.argv.slice(2));
