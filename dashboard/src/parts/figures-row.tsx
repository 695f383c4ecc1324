import "./figures.css";

/** A few figures beside each other, each with what it is of. */
export function FiguresRow({ figures }: { figures: readonly (readonly [name: string, value: string, kind?: string])[] }) {
  return (
    <dl class="figures-row">
      {figures.map(([name, value, kind]) => <div key={name}><dt>{name}</dt><dd class={kind}>{value}</dd></div>)}
    </dl>
  );
}

interface ChoiceProps {
  label: string;
  value: string;
  options: readonly (readonly [value: string, text: string])[];
  onChoose: (value: string) => void;
}

export function Choice({ label, value, options, onChoose }: ChoiceProps) {
  return (
    <label>
      {label} <select value={value} onChange={(event) => onChoose(event.currentTarget.value)}>
        {options.map(([name, text]) => <option key={name} value={name}>{text}</option>)}
      </select>
    </label>
  );
}
