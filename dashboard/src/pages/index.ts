/** All pages by the name in their address. Those with a title stand in the navigation, in this order. */

import type { ComponentType } from "preact";

import { Control } from "./control";
import { Costs } from "./costs";
import { Fleet } from "./fleet";
import { Jobs } from "./jobs";
import { Missing } from "./missing";
import { PlanPage } from "./plan";
import { Settings } from "./settings";
import { Simulate } from "./simulate";

interface Entry {
  name: string;
  title: string | null;
  Page: ComponentType;
}

export const PAGES: readonly Entry[] = [
  { name: "jobs", title: "Jobs", Page: Jobs },
  { name: "plan", title: "Plan", Page: PlanPage },
  { name: "simulate", title: "Simulate", Page: Simulate },
  { name: "fleet", title: "Fleet", Page: Fleet },
  { name: "control", title: "Control", Page: Control },
  { name: "costs", title: "Costs", Page: Costs },
  { name: "settings", title: "Settings", Page: Settings },
];

export function pageOf(name: string): Entry {
  return PAGES.find((one) => one.name === name) ?? { name, title: null, Page: Missing };
}
