/** What is rented, what could be, and from whom. */

import { href, route } from "../../route";
import { MarketTab } from "./market-tab";
import { NodesTab } from "./nodes-tab";
import { ProvidersTab } from "./providers-tab";
import { RoomTab } from "./room-tab";
import "./fleet.css";

const TABS = [
  { name: "nodes", title: "Machines", Tab: NodesTab },
  { name: "market", title: "Market", Tab: MarketTab },
  { name: "providers", title: "Providers", Tab: ProvidersTab },
  { name: "room", title: "Own room", Tab: RoomTab },
] as const;

export function Fleet() {
  const tab = TABS.find((one) => one.name === route.value.id) ?? TABS[0];
  return (
    <div class={`fleet-page ${tab.name}`}>
      <h1>Fleet</h1>
      <nav class="tabs" aria-label="Of the fleet">
        {TABS.map((one) => <a key={one.name} href={href("fleet", one === TABS[0] ? null : one.name)} aria-current={one === tab ? "page" : undefined}>{one.title}</a>)}
      </nav>
      <tab.Tab />
    </div>
  );
}
