import { useEffect, useRef } from "preact/hooks";

import { announce } from "../../parts/announcer";
import type { CreatedKey } from "./shapes";

const FOCUS_MS = 60; // later than the dialog gives the focus back to what had opened it

/** The key itself, until one says that it is kept. Not in a dialog: a click beside it would close that, and the key were lost. */
export function NewKey({ created, onDone }: { created: CreatedKey; onDone: () => void }) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const timer = setTimeout(() => field.current?.select(), FOCUS_MS);
    return () => clearTimeout(timer);
  }, [created.id]);
  const copy = async () => {
    field.current?.select();
    try {
      await navigator.clipboard.writeText(created.key); // only where the page came by https or from this host
      announce("Copied");
    } catch {
      announce("It is selected: copy it by key");
    }
  };
  return (
    <div class="new-key" role="group" aria-label="The new key">
      <label for="new-key">The key for {created.name}: it is shown this once, and stored nowhere</label>
      <div class="new-key-line">
        <input id="new-key" ref={field} class="mono" readOnly value={created.key} />
        <button type="button" onClick={() => void copy()}>Copy</button>
        <button type="button" class="primary" onClick={onDone}>I have kept it</button>
      </div>
      <small class="faint">It goes with this page: whoever loses it needs another one.</small>
    </div>
  );
}
