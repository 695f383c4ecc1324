import { useEffect, useRef, useState } from "preact/hooks";

import { get } from "../../api/client";
import type { Job, LogMatch } from "../../api/jobs";
import type { Page } from "../../api/types";
import { count } from "../../format";
import { route, setQuery } from "../../route";
import { Marked } from "./log";
import { severityOf, shownText } from "./log-lines";

const PAUSE_MS = 350;
const MOST_PAGES = 20; // a page looks at a part of the log, and may be empty

interface Found {
  matches: LogMatch[];
  cursor: string | null;
  busy: boolean;
  error: Error | null;
}

const NOTHING: Found = { matches: [], cursor: null, busy: false, error: null };

/** Searches all of the log on the server, however long it is. */
export function LogSearch({ job, onOpen }: { job: Job; onOpen: (line: number, position: string, text: string) => void }) {
  const q = route.value.query.get("q") ?? "";
  const [text, setText] = useState(q);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const [found, more] = useSearch(job.id, q);
  const typed = (value: string) => {
    setText(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setQuery({ q: value || null }), PAUSE_MS);
  };
  useEffect(() => () => clearTimeout(timer.current), []);
  return (
    <div class="log-search" role="search">
      <input type="search" class="search" aria-label="Search all of the log" placeholder="Search all of the log" value={text} onInput={(event) => typed(event.currentTarget.value)} />
      {q && <Results q={q} found={found} more={more} onOpen={onOpen} />}
    </div>
  );
}

function Results({ q, found, more, onOpen }: { q: string; found: Found; more: () => void; onOpen: (line: number, position: string, text: string) => void }) {
  const { matches, cursor, busy, error } = found;
  return (
    <div class="log-results">
      <p class="faint" role="status">
        {error ? <span class="bad">{error.message}</span> : busy ? "Searching …" : matches.length ? `${count(matches.length)}${cursor ? "+" : ""} lines hold it` : "No line holds it."}
        {cursor && !busy && <button type="button" class="small" onClick={more}>Search on</button>}
      </p>
      {matches.length > 0 && (
        <ol>
          {matches.slice(0, 1000).map((match) => (
            <li key={match.line}>
              <button type="button" class={`log-match ${severityOf(match.text)}`} onClick={() => onOpen(match.line, match.position, shownText(match.text))}>
                <span class="log-number">{match.line}</span><Marked text={shownText(match.text)} q={q} />
              </button>
            </li>
          ))}
        </ol>
      )}
    </div>
  );
}

function useSearch(jobId: string, q: string): [Found, () => void] {
  const [found, set] = useState<Found>(NOTHING);
  const abort = useRef(new AbortController());
  const search = async (cursor: string | null, before: LogMatch[]) => {
    const { signal } = abort.current;
    set({ matches: before, cursor, busy: true, error: null });
    try {
      const fresh: LogMatch[] = [];
      for (let page = 0; page < MOST_PAGES && fresh.length < 100; page += 1) {
        const answer: Page<LogMatch> = await get(`v1/jobs/${encodeURIComponent(jobId)}/logs/search`, { query: { q, ignore_case: true, cursor }, signal });
        fresh.push(...answer.data);
        cursor = answer.next_cursor;
        if (cursor === null) break;
      }
      set({ matches: [...before, ...fresh], cursor, busy: false, error: null });
    } catch (error) {
      if (!signal.aborted) set({ matches: before, cursor, busy: false, error: error as Error });
    }
  };
  useEffect(() => {
    abort.current = new AbortController();
    if (q) void search(null, []);
    else set(NOTHING);
    return () => abort.current.abort();
  }, [jobId, q]);
  return [found, () => void search(found.cursor, found.matches)];
}
