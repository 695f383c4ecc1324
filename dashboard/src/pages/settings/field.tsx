import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

interface FieldProps {
  label: string;
  hint?: string;
  wrong?: string | null;
}

interface TextFieldProps extends FieldProps {
  value: string;
  set: (text: string) => void;
  placeholder?: string;
  first?: boolean; // has the focus as the form opens
  numeric?: boolean;
}

export function TextField({ label, hint, wrong, value, set, placeholder, first = false, numeric = false }: TextFieldProps) {
  const id = useId();
  return (
    <>
      <label for={id}>{label}</label>
      <input id={id} value={value} autofocus={first} placeholder={placeholder} autocomplete="off" spellcheck={false} inputMode={numeric ? "decimal" : undefined}
        aria-invalid={Boolean(wrong)} aria-describedby={`${id}-note`} onInput={(event) => set(event.currentTarget.value)} />
      <Note id={`${id}-note`} hint={hint} wrong={wrong} />
    </>
  );
}

interface SelectFieldProps extends FieldProps {
  value: string;
  set: (value: string) => void;
  options: readonly { value: string; text: string }[];
  disabled?: boolean;
}

export function SelectField({ label, hint, wrong, value, set, options, disabled = false }: SelectFieldProps) {
  const id = useId();
  return (
    <>
      <label for={id}>{label}</label>
      <select id={id} value={value} disabled={disabled} aria-invalid={Boolean(wrong)} aria-describedby={`${id}-note`} onChange={(event) => set(event.currentTarget.value)}>
        {options.map((one) => <option key={one.value} value={one.value}>{one.text}</option>)}
      </select>
      <Note id={`${id}-note`} hint={hint} wrong={wrong} />
    </>
  );
}

/** Under a field: what is wrong with it, or else what it is for. It holds its line, so that nothing jumps. */
export function Note({ id, hint, wrong }: { id: string; hint?: ComponentChildren; wrong?: string | null }) {
  return <small id={id} class={`field-note ${wrong ? "bad" : "faint"}`} role={wrong ? "alert" : undefined}>{wrong || hint}</small>;
}
