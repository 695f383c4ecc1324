/** A dialog in front of the page. The browser keeps the focus within it and gives it back to what opened it. */

import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { Command } from "./command";
import "./dialog.css";

export function Dialog({ title, onClose, children }: { title: string; onClose: () => void; children: ComponentChildren }) {
  const element = useRef<HTMLDialogElement>(null);
  const name = useId();
  useEffect(() => {
    const before = document.activeElement;
    element.current?.showModal();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog ref={element} class="dialog" aria-labelledby={name} onClose={onClose} onClick={(event) => {
      if (event.target === element.current) element.current?.close(); // on the ground around it
    }}>
      <div class="dialog-inside">
        <h2 id={name}>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

export interface ConfirmProps {
  title: string;
  act: string; // on the button: "Pause the job"
  danger?: boolean;
  command?: string; // of the CLI, that does the same
  ready?: boolean; // false: something has to be filled in first
  onAct: () => Promise<unknown>; // closes when it is done; an error is shown and leaves the dialog open
  onClose: () => void;
  children: ComponentChildren; // what it does, and what is lost
}

/** Asks before something is done, and says how it went. */
export function Confirm({ title, act, danger, command, ready = true, onAct, onClose, children }: ConfirmProps) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<Error | null>(null);
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
      <form onSubmit={(event) => void submit(event)}>
        {children}
        {error && <p class="bad" role="alert">{error.message}</p>}
        {command && <p class="dialog-command"><span class="faint">The same by command: </span><Command text={command} /></p>}
        <div class="dialog-buttons">
          <button type="button" autofocus onClick={onClose}>Leave it</button>
          <button type="submit" class={danger ? "danger" : "primary"} disabled={busy || !ready}>{busy ? `${act} …` : act}</button>
        </div>
      </form>
    </Dialog>
  );
}
