import { hourly } from "../format";
import "./status.css";

export interface PlaceFacts {
  provider: string;
  tier: string;
  gpu_type: string;
  gpu_count: number;
  price_per_hour: number;
}

export function gpus(type: string, count: number): string {
  return count === 1 ? type : `${count}× ${type}`;
}

/** A tier in its colour, everywhere the same one. */
export function Tier({ tier }: { tier: string }) {
  return <span class={`tier ${tier}`}>{tier}</span>;
}

/** marketplace  vast A100  $0.71/h */
export function Place({ at }: { at: PlaceFacts }) {
  return (
    <span class="place">
      <Tier tier={at.tier} /> {at.provider} <span class="whole">{gpus(at.gpu_type, at.gpu_count)}</span> <span class="faint whole">{hourly(at.price_per_hour)}</span>
    </span>
  );
}
