/** A stream of server-sent events that comes back by itself, and how it stands: asked anew, it says what is missing. */

export type Standing = "live" | "lost";

export interface LiveOptions {
  event: string; // the name of its events; "message" where they have none
  onData: (data: unknown) => void;
  onStanding?: (now: Standing) => void;
  /** Called when it is live again after it was not: what happened meanwhile was not told. */
  onBack?: () => void;
  end?: string; // an event after which no more come
}

const PATIENCE_MS = 4_000; // a stream that ends in order comes back sooner: nobody needs to hear of it
const LONGEST_WAIT_MS = 30_000;
const UNSEEN_MS = 20_000; // a page that nobody sees gives its connection back: browsers have few for one host

/** Listens until the function that it returns is called. */
export function listen(path: string, { event, onData, onStanding, onBack, end }: LiveOptions): () => void {
  let source: EventSource | null = null;
  let failures = 0;
  let missed = false;
  let again: ReturnType<typeof setTimeout> | undefined;
  let alarm: ReturnType<typeof setTimeout> | undefined;
  let rest: ReturnType<typeof setTimeout> | undefined;
  const opened = () => {
    clearTimeout(alarm);
    alarm = undefined;
    failures = 0;
    onStanding?.("live");
    if (missed) onBack?.();
    missed = false;
  };
  const broken = () => {
    missed = true;
    alarm ??= setTimeout(() => onStanding?.("lost"), PATIENCE_MS);
    if (source?.readyState !== EventSource.CLOSED) return; // the browser connects again
    source.close();
    failures += 1;
    again = setTimeout(connect, waitMs(failures));
  };
  const connect = () => {
    source = new EventSource(path);
    source.addEventListener("open", opened);
    source.addEventListener("error", broken);
    source.addEventListener(event, (message) => onData(parsed((message as MessageEvent<string>).data)));
    if (end) source.addEventListener(end, stop);
  };
  const close = () => {
    clearTimeout(again);
    clearTimeout(alarm);
    alarm = undefined;
    source?.close();
    source = null;
  };
  const seen = () => {
    clearTimeout(rest);
    if (document.hidden) rest = setTimeout(close, UNSEEN_MS);
    else if (!source) {
      missed = true;
      connect();
    }
  };
  const stop = () => {
    document.removeEventListener("visibilitychange", seen);
    clearTimeout(rest);
    close();
  };
  document.addEventListener("visibilitychange", seen);
  connect();
  return stop;
}

/** Twice as long each time, up to half a minute. */
export function waitMs(failures: number): number {
  return Math.min(LONGEST_WAIT_MS, 1000 * 2 ** (failures - 1));
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
