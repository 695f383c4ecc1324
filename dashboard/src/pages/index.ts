/** All pages by the name in their address. Those with a title stand in the navigation, in this order. */

import type { ComponentType } from "preact";

import { Costs } from "./costs";
import { Fleet } from "./fleet";
import { Jobs } from "./jobs";
import { Missing } from "./missing";

interface Entry {
  name: string;
  title: string | null;
  Page: ComponentType;
}

export const PAGES: readonly Entry[] = [
  { name: "jobs", title: "Jobs", Page: Jobs },
  { name: "fleet", title: "Fleet", Page: Fleet },
  { name: "costs", title: "Costs", Page: Costs },
];

export function pageOf(name: string): Entry {
  return PAGES.find((one) => one.name === name) ?? { name, title: null, Page: Missing };
}
