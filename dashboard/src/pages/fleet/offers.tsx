import { all } from "../../api/client";
import { TIERS, type Offer } from "../../api/fleet";
import { bytes, duration, hourly, plural } from "../../format";
import { Command } from "../../parts/command";
import { Empty } from "../../parts/empty";
import { Choice } from "../../parts/figures-row";
import { Part } from "../../parts/part";
import { gpus, Tier } from "../../parts/place";
import { useReading } from "../../parts/reading";
import { Time } from "../../parts/time";
import { route, setQuery } from "../../route";

const SHOWN = 100;
const ANEW_MS = 15_000;
const MOST = 2_000;

/** As the companies told last, the cheapest per GPU first. */
export function Offers() {
  const gpu = route.value.query.get("gpu") ?? "";
  const tier = route.value.query.get("tier") ?? "";
  const reading = useReading("offers", (signal) => all<Offer>("v1/offers", { signal, query: { limit: 1000 } }, MOST), ANEW_MS);
  return (
    <Part title="What could be rented now" reading={reading}>
      {(offers) => {
        const types = [...new Set(offers.map((offer) => offer.gpu_type))].sort();
        const fit = offers.filter((offer) => (!gpu || offer.gpu_type === gpu) && (!tier || offer.tier === tier));
        return (
          <>
            <div class="choices">
              <Choice label="GPU" value={gpu} options={[["", "all"], ...types.map((type) => [type, type] as const)]} onChoose={(value) => setQuery({ gpu: value })} />
              <Choice label="Tier" value={tier} options={[["", "all"], ...TIERS.map((one) => [one, one] as const)]} onChoose={(value) => setQuery({ tier: value })} />
              <Command text={`allpass offers${gpu ? ` --gpu ${gpu}` : ""}`} />
            </div>
            <Table offers={fit} />
          </>
        );
      }}
    </Part>
  );
}

function Table({ offers }: { offers: readonly Offer[] }) {
  if (!offers.length) return <Empty title="Nothing like that is on offer." />;
  return (
    <>
      <div class="scroll" tabIndex={0} role="group" aria-label="Offers">
        <table>
          <thead><tr><th>GPUs</th><th class="number">Memory</th><th>Where</th><th class="number">per GPU</th><th class="number">in all</th><th class="number">Ready after</th><th>Told</th></tr></thead>
          <tbody>{offers.slice(0, SHOWN).map((offer) => <Row key={`${offer.provider} ${offer.offer_id}`} offer={offer} />)}</tbody>
        </table>
      </div>
      <p class="faint">{offers.length > SHOWN ? `The cheapest ${SHOWN} of ${plural(offers.length, "offer")}.` : plural(offers.length, "offer")}</p>
    </>
  );
}

function Row({ offer }: { offer: Offer }) {
  return (
    <tr>
      <td>{gpus(offer.gpu_type, offer.gpu_count)}</td>
      <td class="number">{bytes(offer.gpu_memory_bytes)}</td>
      <td><Tier tier={offer.tier} /> {offer.provider} <span class="faint">{offer.region}</span></td>
      <td class="number">{hourly(offer.price_per_gpu_hour)}</td>
      <td class="number">{hourly(offer.price_per_hour)}</td>
      <td class="number">{duration(offer.startup_ms)}</td>
      <td class={offer.price_is_old ? "wait" : ""}>{offer.price_as_of ? `price list of ${offer.price_as_of}` : <Time at={offer.seen_at} />}</td>
    </tr>
  );
}
