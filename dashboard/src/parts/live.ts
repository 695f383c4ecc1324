/** A stream of server-sent events that comes back by itself, and says how it stands. */

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

type Timer = ReturnType<typeof setTimeout> | undefined;

/** Listens until the function that it returns is called. */
export function listen(path: string, options: LiveOptions): () => void {
  const stream = new Stream(path, options);
  let rest: Timer;
  const seen = () => {
    clearTimeout(rest);
    if (document.hidden) rest = setTimeout(() => stream.close(), UNSEEN_MS);
    else stream.resume();
  };
  document.addEventListener("visibilitychange", seen);
  stream.connect();
  return () => {
    document.removeEventListener("visibilitychange", seen);
    clearTimeout(rest);
    stream.close();
  };
}

class Stream {
  private source: EventSource | null = null;
  private failures = 0;
  private missed = false;
  private ended = false;
  private again: Timer;
  private alarm: Timer;

  constructor(
    private readonly path: string,
    private readonly options: LiveOptions,
  ) {}

  connect(): void {
    const { event, onData, end } = this.options;
    this.source = new EventSource(this.path);
    this.source.addEventListener("open", () => this.opened());
    this.source.addEventListener("error", () => this.broken());
    this.source.addEventListener(event, (message) => onData(parsed((message as MessageEvent<string>).data)));
    if (end) this.source.addEventListener(end, () => this.finished());
  }

  /** After close(): what was told meanwhile is missing. */
  resume(): void {
    if (this.source || this.ended) return;
    this.missed = true;
    this.connect();
  }

  close(): void {
    clearTimeout(this.again);
    this.calm();
    this.source?.close();
    this.source = null;
  }

  private opened(): void {
    this.calm();
    this.failures = 0;
    this.options.onStanding?.("live");
    if (this.missed) this.options.onBack?.();
    this.missed = false;
  }

  private broken(): void {
    this.missed = true;
    this.alarm ??= setTimeout(() => this.options.onStanding?.("lost"), PATIENCE_MS);
    if (this.source?.readyState !== EventSource.CLOSED) return; // the browser connects again
    this.source.close();
    this.failures += 1;
    this.again = setTimeout(() => this.connect(), waitMs(this.failures));
  }

  private finished(): void {
    this.ended = true;
    this.close();
  }

  private calm(): void {
    clearTimeout(this.alarm);
    this.alarm = undefined;
  }
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
