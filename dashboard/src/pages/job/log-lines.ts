/** The lines of a log that grows, within bounds, and how grave each is. Pure: each piece of text gives a new state. */

export type Severity = "" | "bad" | "wait" | "head";

export interface LogLine {
  number: number; // from 1; of the whole log
  text: string;
  severity: Severity;
}

export interface LogLines {
  lines: readonly LogLine[];
  rest: string; // the beginning of a line whose end has not come
  next: number; // of the line that comes next
  dropped: number; // so many of the oldest are no longer kept
}

export const NO_LINES: LogLines = { lines: [], rest: "", next: 1, dropped: 0 };
const LONGEST = 4_000; // of a line, as it is shown

const ESCAPES = /\u001b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\u0007]*\u0007|[@-_])/g;
const BAD = /\b(?:ERROR|CRITICAL|FATAL|Fatal|SIGKILL|panic)\b|Traceback \(most recent call last\)|\b\w*(?:Error|Exception)\b:|CUDA out of memory|\bKilled\b|\[allpass: .*lost\]/;
const WARNING = /\bWARN(?:ING)?\b|\b\w*Warning\b|\bdeprecated\b/i;
const HEAD = /^---- run \d+ on .* ----$/;

export function severityOf(text: string, before: Severity = ""): Severity {
  if (HEAD.test(text)) return "head";
  if (BAD.test(text)) return "bad";
  if (before === "bad" && /^\s+\S/.test(text)) return "bad"; // the lines of a traceback
  return WARNING.test(text) ? "wait" : "";
}

/** What a terminal would show at last: without its colours, and after the last return of a progress bar. */
export function shownText(raw: string): string {
  const plain = raw.replace(ESCAPES, "").replace(/\r+$/, "");
  const shown = plain.slice(plain.lastIndexOf("\r") + 1);
  return shown.length > LONGEST ? `${shown.slice(0, LONGEST)} … (${shown.length} characters)` : shown;
}

/** `most`: so many lines are kept; when there are more, the oldest go. `last`: no more will come. */
export function withText(state: LogLines, text: string, { most = 50_000, last = false } = {}): LogLines {
  const parts = (state.rest + text).split("\n");
  let rest = parts.pop()!;
  if (last && rest) {
    parts.push(rest);
    rest = "";
  }
  if (!parts.length) return rest === state.rest ? state : { ...state, rest };
  let before: Severity = state.lines.at(-1)?.severity ?? "";
  const fresh = parts.map((raw, at) => {
    const shown = shownText(raw);
    before = severityOf(shown, before);
    return { number: state.next + at, text: shown, severity: before };
  });
  const all = state.lines.concat(fresh);
  const over = all.length > most ? all.length - Math.floor(most * 0.8) : 0;
  return { lines: over ? all.slice(over) : all, rest, next: state.next + parts.length, dropped: state.dropped + over };
}
