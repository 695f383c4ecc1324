import { useState } from "preact/hooks";

import { bytes, count, duration, hourly, money } from "../../format";
import { gpus, Tier } from "../../parts/place";
import { Time } from "../../parts/time";
import type { Offer } from "./shapes";

const AT_ONCE = 100;

export function OfferTable({ offers }: { offers: readonly Offer[] }) {
  const [most, setMost] = useState(AT_ONCE);
  return (
    <>
      <div class="scroll" tabIndex={0} role="group" aria-label="Offers">
        <table class="tabled">
          <thead>
            <tr>
              <th scope="col">GPU</th><th scope="col" class="number">Per GPU</th><th scope="col" class="number">In all</th><th scope="col">Tier</th><th scope="col">Provider</th>
              <th scope="col">Region</th><th scope="col" class="number">GPU memory</th><th scope="col" class="number">CPUs, memory</th>
              <th scope="col" class="number">Starts in</th><th scope="col" class="number">Lives</th><th scope="col" class="number">Per GB</th><th scope="col">Seen</th>
            </tr>
          </thead>
          <tbody>{offers.slice(0, most).map((offer) => <Row key={`${offer.provider} ${offer.offer_id}`} offer={offer} />)}</tbody>
        </table>
      </div>
      {offers.length > most && <p><button type="button" onClick={() => setMost(most + 4 * AT_ONCE)}>Show more of the {count(offers.length)}</button></p>}
    </>
  );
}

function Row({ offer }: { offer: Offer }) {
  return (
    <tr>
      <td class="whole">{gpus(offer.gpu_type, offer.gpu_count)}{offer.cpu_architecture === "arm64" && <span class="faint" title="only jobs that name this type of GPU are placed there"> arm64</span>}</td>
      <td class="number"><b>{hourly(offer.price_per_gpu_hour)}</b></td>
      <td class="number">{hourly(offer.price_per_hour)}</td>
      <td><Tier tier={offer.tier} /></td>
      <td class="cut" title={`offer ${offer.offer_id}`}>{offer.provider}</td>
      <td class="cut" title={offer.region}>{offer.region || "–"}</td>
      <td class="number">{bytes(offer.gpu_memory_bytes)}</td>
      <td class="number">{offer.cpus}, {bytes(offer.memory_bytes)}</td>
      <td class="number">{duration(offer.startup_ms)}</td>
      <td class="number" title="how long such machines live until they fail, as seen here lately">{offer.mean_life_ms === null ? "–" : duration(offer.mean_life_ms)}</td>
      <td class="number" title="of traffic to or from the internet">{money(offer.traffic_per_gb)}</td>
      <td class="whole"><Time at={offer.seen_at} />{offer.price_as_of && <span class={offer.price_is_old ? "wait" : "faint"}>, price of {offer.price_as_of}</span>}</td>
    </tr>
  );
}
