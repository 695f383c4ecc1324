/** A form in a dialog: what the service says of a field stands at that field, all else above the buttons. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

import { ApiError } from "../../api/client";
import { Command } from "../../parts/command";
import { Dialog } from "../../parts/dialog";

/** What is wrong with a field by its name in the API, or null. */
export type Wrong = (field: string) => string | null;

interface FormDialogProps {
  title: string;
  act: string; // on the button: "Set the budget"
  fields: readonly string[]; // by their names in the API; the form has each of them
  command: string;
  ready: boolean;
  onAct: () => Promise<unknown>;
  onClose: () => void;
  children: (wrong: Wrong) => ComponentChildren;
}

export function FormDialog({ title, act, fields, command, ready, onAct, onClose, children }: FormDialogProps) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
  const form = useRef<HTMLFormElement>(null);
  const field = error ? fieldOf(error, fields) : null;
  useEffect(() => {
    if (field) form.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus();
  }, [error]);
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await onAct();
      onClose();
    } catch (failed) {
      setError(failed as Error);
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <form ref={form} onSubmit={(event) => void submit(event)}>
        {children((name) => (name === field ? error!.message : null))}
        {error && !field && <p class="bad" role="alert">{error.message}</p>}
        <p class="dialog-command"><span class="faint">The same by command: </span><Command text={command} /></p>
        <div class="dialog-buttons">
          <button type="button" onClick={onClose}>Leave it</button>
          <button type="submit" class="primary" disabled={busy || !ready}>{busy ? `${act} …` : act}</button>
        </div>
      </form>
    </Dialog>
  );
}

/** The field that an error is about: "scopes.0" is about "scopes". */
export function fieldOf(error: Error, fields: readonly string[]): string | null {
  const param = error instanceof ApiError ? error.detail.param : null;
  if (!param) return null;
  return fields.find((one) => param === one || param.startsWith(`${one}.`)) ?? null;
}
