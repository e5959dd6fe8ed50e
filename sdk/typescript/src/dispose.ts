// The symbols of `using` and `await using`, for versions of Node without them.

const symbols = Symbol as unknown as { asyncDispose?: symbol; dispose?: symbol };
symbols.dispose ??= Symbol.for("Symbol.dispose");
symbols.asyncDispose ??= Symbol.for("Symbol.asyncDispose");
