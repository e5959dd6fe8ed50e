// Settings that msb has no place for, kept in labels that programs do not see.

/** The prefix of these labels. */
const PREFIX = "msb.sdk.";
/** The default command, as a JSON array. */
export const CMD_LABEL = "msb.sdk.cmd";
/** The entrypoint before the default command, as a JSON array. */
export const ENTRYPOINT_LABEL = "msb.sdk.entrypoint";
/** Milliseconds between two samples; `off` disables metrics. */
export const METRICS_LABEL = "msb.sdk.metrics";

/** Whether a label belongs to this package. */
export function isHidden(label: string): boolean {
  return label.startsWith(PREFIX);
}

/** The labels that the program has set. */
export function visible(labels: Record<string, string>): Record<string, string> {
  return Object.fromEntries(Object.entries(labels).filter(([key]) => !isHidden(key)));
}
