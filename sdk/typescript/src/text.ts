// Conversions between bytes, text and the units of the protocol.

/** Bytes of a value that programs give as text or bytes. */
export function toBytes(data: Uint8Array | ArrayBuffer | string): Uint8Array {
  if (typeof data === "string") return Buffer.from(data, "utf8");
  return data instanceof Uint8Array ? data : new Uint8Array(data);
}

/** Decodes UTF-8; other bytes become the replacement character. */
export function toText(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("utf8");
}

/** Escapes a path as the protocol writes it: a backslash is written twice. */
export function escapePath(path: string): string {
  return path.replaceAll("\\", "\\\\");
}

/** The bytes of text in which a backslash is doubled and a byte that is not UTF-8 is `\xNN`. */
export function unescapeBytes(text: string): Buffer {
  if (!text.includes("\\")) return Buffer.from(text, "utf8");
  const pieces: Buffer[] = [];
  let from = 0;
  for (let at = text.indexOf("\\"); at >= 0; at = text.indexOf("\\", from)) {
    pieces.push(Buffer.from(text.slice(from, at), "utf8"));
    if (text[at + 1] === "x") {
      pieces.push(Buffer.from([Number.parseInt(text.slice(at + 2, at + 4), 16)]));
      from = at + 4;
    } else {
      pieces.push(Buffer.from("\\"));
      from = at + 2;
    }
  }
  pieces.push(Buffer.from(text.slice(from), "utf8"));
  return Buffer.concat(pieces);
}

/** An amount of MiB as the protocol writes it; fractions are rounded up to bytes. */
export function mebibytes(mib: number): string {
  return String(Math.ceil(mib * 1_048_576));
}

/** Milliseconds as the protocol writes them. */
export function milliseconds(ms: number): string {
  return `${String(Math.max(0, Math.round(ms)))}ms`;
}

/** Seconds as the protocol writes them. */
export function seconds(secs: number): string {
  return milliseconds(secs * 1000);
}

/** Resolves after some milliseconds, or rejects when the signal aborts. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const onAbort = (): void => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", onAbort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", onAbort, { once: true });
  });
}
