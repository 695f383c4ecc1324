import type { Payer } from "./shapes";

/** Who paid, in words. */
export const PAYER_WORDS: Record<Payer, { short: string; what: string }> = {
  run: { short: "running", what: "GPUs that jobs held" },
  boot: { short: "booting", what: "before a machine that was rented for a job was ready" },
  idle: { short: "idle", what: "machines that nobody held" },
  orphan: { short: "orphaned", what: "machines that nobody owned, until they were found and ended" },
};

/** What the colours mean. */
export function PayerKey({ payers }: { payers: readonly Payer[] }) {
  return (
    <span class="payer-key">
      {payers.map((payer) => <span key={payer} title={PAYER_WORDS[payer].what}><i class={`payer ${payer}`} aria-hidden="true" /> {PAYER_WORDS[payer].short}</span>)}
    </span>
  );
}
