/** All that happened to a job so far, and what happens while one looks. */

import { useEffect, useRef, useState } from "preact/hooks";

import { address, all } from "../api/client";
import type { JobEvent } from "../api/jobs";
import { listen } from "./live";

const MOST = 5_000;
const GATHER_MS = 400; // events come in bursts: the page is drawn once for all of them

export interface Events {
  list: readonly JobEvent[];
  read: boolean;
  error: Error | null;
}

/** `live`: whether more may come. */
export function useEvents(jobId: string, live: boolean): Events {
  const [state, set] = useState<Events>({ list: [], read: false, error: null });
  useEffect(() => {
    const path = `v1/jobs/${encodeURIComponent(jobId)}/events`;
    const abort = new AbortController();
    let stop: () => void = () => undefined;
    const follow = (after: number) => {
      if (live && !abort.signal.aborted) stop = following(address(`${path}/stream`, { after }), (fresh) => set((before) => ({ ...before, list: joined(before.list, fresh) })));
    };
    all<JobEvent>(path, { query: { limit: 1000 }, signal: abort.signal }, MOST).then(
      (list) => {
        set({ list, read: true, error: null });
        follow(list.at(-1)?.position ?? 0);
      },
      (error: Error) => abort.signal.aborted || set((before) => ({ ...before, error })),
    );
    return () => {
      abort.abort();
      stop();
    };
  }, [jobId, live]);
  return state;
}

/** Does something each time that `key` changes once it is known, but not for what it is at first. */
export function useNews(key: string, known: boolean, act: () => void): void {
  const before = useRef<string | null>(null);
  useEffect(() => {
    if (!known) return;
    if (before.current !== null && before.current !== key) act();
    before.current = key;
  }, [key, known]);
}

function following(path: string, take: (fresh: JobEvent[]) => void): () => void {
  let gathered: JobEvent[] = [];
  let timer: ReturnType<typeof setTimeout> | undefined;
  const stop = listen(path, {
    event: "message",
    end: "end",
    onData: (data) => {
      gathered.push(data as JobEvent);
      timer ??= setTimeout(() => {
        timer = undefined;
        take(gathered.splice(0));
      }, GATHER_MS);
    },
  });
  return () => {
    clearTimeout(timer);
    gathered = [];
    stop();
  };
}

/** In order, each once: a stream that was lost tells some again. */
export function joined(before: readonly JobEvent[], fresh: readonly JobEvent[]): readonly JobEvent[] {
  const last = before.at(-1)?.position ?? 0;
  const more = fresh.filter((event) => event?.position > last);
  return more.length ? [...before, ...more].slice(-MOST) : before;
}
