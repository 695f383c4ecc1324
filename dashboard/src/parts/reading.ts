/** Reads something from the API, again every so often, and says how that went. */

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

export interface Reading<T> {
  value: T | null; // what was read last; stays while a later reading fails
  error: Error | null; // of the newest reading
  again: () => void;
}

/** `key` names what is read: another key starts anew. `everyMs` 0: once. Nothing is read while the page is hidden. */
export function useReading<T>(key: string, read: (signal: AbortSignal) => Promise<T>, everyMs = 0): Reading<T> {
  const [state, set] = useState<{ key: string; value: T | null; error: Error | null }>({ key, value: null, error: null });
  const [turn, setTurn] = useState(0);
  const reader = useRef(read);
  reader.current = read;
  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const once = async () => {
      if (!document.hidden || turn === 0) {
        try {
          const value = await reader.current(abort.signal);
          if (!abort.signal.aborted) set({ key, value, error: null });
        } catch (error) {
          if (abort.signal.aborted) return;
          set((before) => ({ key, value: before.key === key ? before.value : null, error: error as Error }));
        }
      }
      if (everyMs && !abort.signal.aborted) timer = setTimeout(() => void once(), everyMs);
    };
    void once();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [key, everyMs, turn]);
  const again = useCallback(() => setTurn((before) => before + 1), []);
  return state.key === key ? { value: state.value, error: state.error, again } : { value: null, error: null, again };
}
