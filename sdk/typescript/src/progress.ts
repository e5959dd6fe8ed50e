// The progress of a sandbox that is being created.

import type { Progress } from "./generated";
import type { Sandbox } from "./sandbox";
import type { CallOptions } from "./session";

/** A step of a pull. msb reports one row of bytes for the whole image. */
export type PullProgress =
  | { kind: "resolving"; reference: string }
  | {
      kind: "layerDownloadProgress";
      layerIndex: number;
      digest: string;
      downloadedBytes: number;
      totalBytes: number | null;
    }
  | { kind: "complete"; reference: string; layerCount: number };

/** A step of a creation: of the pull, or of the start. */
export type CreationProgress =
  | PullProgress
  | { kind: "startup"; phase: string; completedBytes: number; totalBytes: number | null };

/** Events that a consumer reads at its own pace. */
export class ProgressFeed {
  /** The sandbox; rejects if it cannot be created. */
  readonly sandbox: Promise<Sandbox>;
  readonly #abort = new AbortController();
  #queue: CreationProgress[];
  #waiting: (() => void)[] = [];
  #over = false;

  /** @internal */
  constructor(reference: string, create: (options: CallOptions) => Promise<Sandbox>) {
    this.#queue = [{ kind: "resolving", reference }];
    const onProgress = (progress: Progress): void => {
      this.#push(event(progress));
    };
    this.sandbox = create({ signal: this.#abort.signal, onProgress });
    this.sandbox.then(
      () => {
        this.#push({ kind: "complete", reference, layerCount: 0 });
        this.#end();
      },
      () => {
        this.#end();
      },
    );
  }

  #push(step: CreationProgress): void {
    this.#queue.push(step);
    for (const wake of this.#waiting.splice(0)) wake();
  }

  #end(): void {
    this.#over = true;
    for (const wake of this.#waiting.splice(0)) wake();
  }

  /** The next step, or null after the last. */
  async recv(): Promise<CreationProgress | null> {
    for (;;) {
      const step = this.#queue.shift();
      if (step !== undefined) return step;
      if (this.#over) return null;
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
  }

  cancel(): void {
    this.#abort.abort();
  }
}

function event(progress: Progress): CreationProgress {
  const { what, done, of } = progress;
  if (!what.startsWith("pulling")) {
    return { kind: "startup", phase: what, completedBytes: done ?? 0, totalBytes: of ?? null };
  }
  return {
    kind: "layerDownloadProgress",
    layerIndex: 0,
    digest: "",
    downloadedBytes: done ?? 0,
    totalBytes: of ?? null,
  };
}

/** The steps, one after the other. */
export class PullProgressStream<T = PullProgress> implements AsyncIterable<T> {
  /** @internal */
  constructor(
    private readonly feed: ProgressFeed,
    private readonly accepts: (step: CreationProgress) => boolean,
  ) {}

  /** The next step, or null after the last. */
  async recv(): Promise<T | null> {
    for (;;) {
      const step = await this.feed.recv();
      if (step === null) return null;
      if (this.accepts(step)) return step as T;
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T> {
    for (let step = await this.recv(); step !== null; step = await this.recv()) yield step;
  }
}

abstract class ProgressCreate<T> implements AsyncIterable<T> {
  /** The steps of the creation. */
  readonly progress: PullProgressStream<T>;
  readonly #feed: ProgressFeed;

  /** @internal */
  constructor(feed: ProgressFeed, accepts: (step: CreationProgress) => boolean) {
    this.#feed = feed;
    this.progress = new PullProgressStream<T>(feed, accepts);
  }

  /** The sandbox, when it runs. */
  awaitSandbox(): Promise<Sandbox> {
    return this.#feed.sandbox;
  }

  /** Cancels the creation; `awaitSandbox` rejects. */
  cancel(): void {
    this.#feed.cancel();
  }

  [Symbol.asyncIterator](): AsyncIterator<T> {
    return this.progress[Symbol.asyncIterator]();
  }
}

/** A creation with the progress of its pull. */
export class PullProgressCreate extends ProgressCreate<PullProgress> {
  /** @internal */
  constructor(feed: ProgressFeed) {
    super(feed, (step) => step.kind !== "startup");
  }
}

/** A creation with all of its progress. */
export class CreationProgressCreate extends ProgressCreate<CreationProgress> {
  /** @internal */
  constructor(feed: ProgressFeed) {
    super(feed, () => true);
  }
}
