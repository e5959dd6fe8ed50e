// Logins in the form of SSH. They use the session, so that no keys and no sshd are needed.

import { attach } from "./attach";
import { ExecOptionsBuilder, run } from "./exec";
import { unsupported } from "./errors";
import { SandboxFsOps } from "./fs";

export interface SshClientOptions {
  /** Default: root. */
  user?: string;
  term?: string;
  sftp?: boolean;
  inactivityTimeoutSecs?: number;
}

export interface SshServerOptions {
  hostKeyPath?: string;
  authorizedKeysPath?: string;
  user?: string;
  sftp?: boolean;
  inactivityTimeoutSecs?: number;
}

export interface SshExecOptions {
  tty?: boolean;
}

export interface SshAttachOptions {
  term?: string;
  detachKeys?: string;
}

export interface SshOutput {
  status: number;
  stdout: Buffer;
  stderr: Buffer;
}

/** Logins in a sandbox. */
export class SandboxSshOps {
  /** @internal */
  constructor(private readonly sandbox: { readonly name: string }) {}

  /** A login as a user. */
  openClient(options: SshClientOptions = {}): Promise<SshClient> {
    if (options.inactivityTimeoutSecs !== undefined) {
      return Promise.reject(unsupported("a timeout of an inactive login", "use `idleTimeout`"));
    }
    return Promise.resolve(new SshClient(this.sandbox.name, options));
  }

  /** Always fails: `msb ssh serve` is the server. */
  prepareServer(_options: SshServerOptions = {}): Promise<SshServer> {
    return Promise.reject(unsupported("an SSH server in this program", "run `msb ssh serve`"));
  }
}

/** Only for its type: {@link SandboxSshOps.prepareServer} fails. */
export abstract class SshServer {
  abstract serveConnection(): Promise<void>;
  abstract close(): void;
}

/** A login as a user. */
export class SshClient {
  /** @internal */
  constructor(
    private readonly sandbox: string,
    private readonly options: SshClientOptions,
  ) {}

  /** Runs a command line in the login shell. */
  async exec(command: string, options: SshExecOptions = {}): Promise<SshOutput> {
    const builder = new ExecOptionsBuilder()
      .args(["-c", command])
      .user(this.options.user ?? "root")
      .tty(options.tty === true);
    const output = await run(this.sandbox, builder.settings(["/bin/sh"]));
    return {
      status: output.code,
      stdout: Buffer.from(output.stdoutBytes()),
      stderr: Buffer.from(output.stderrBytes()),
    };
  }

  /** A shell at the terminal of this program. The result is its exit code. */
  attach(options: SshAttachOptions = {}): Promise<number> {
    const term = options.term ?? this.options.term ?? process.env["TERM"] ?? "xterm";
    const user = this.options.user ?? "root";
    const command = { argv: ["/bin/sh", "-l"], user, env: [["TERM", term]] as [string, string][] };
    return attach(this.sandbox, command, options.detachKeys);
  }

  /** The files of the sandbox. */
  sftp(): Promise<SftpClient> {
    if (this.options.sftp === false) return Promise.reject(unsupported("SFTP of this login"));
    return Promise.resolve(new SftpClient(this.sandbox));
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}

/** The files of a sandbox, in the form of SFTP. */
export class SftpClient {
  readonly #fs: SandboxFsOps;

  /** @internal */
  constructor(sandbox: string) {
    this.#fs = new SandboxFsOps({ sandbox });
  }

  async read(path: string): Promise<Buffer> {
    return Buffer.from(await this.#fs.read(path));
  }

  write(path: string, data: Uint8Array | string): Promise<void> {
    return this.#fs.write(path, data);
  }

  mkdir(path: string): Promise<void> {
    return this.#fs.mkdir(path);
  }

  removeFile(path: string): Promise<void> {
    return this.#fs.remove(path);
  }

  removeDir(path: string): Promise<void> {
    return this.#fs.removeDir(path);
  }

  rename(from: string, to: string): Promise<void> {
    return this.#fs.rename(from, to);
  }

  realPath(path: string): Promise<string> {
    return this.#fs.realPath(path);
  }

  readLink(path: string): Promise<string> {
    return this.#fs.readLink(path);
  }

  symlink(target: string, link: string): Promise<void> {
    return this.#fs.symlink(target, link);
  }

  close(): Promise<void> {
    return Promise.resolve();
  }
}
