/** What is settled for the project and the installation: each part below an address of its own. */

import { useEffect, useRef } from "preact/hooks";

import { href, route } from "../../route";
import { ProvidersView } from "../control/providers";
import { Audit } from "./audit";
import { Budgets } from "./budgets";
import { Keys } from "./keys";
import { ProjectView } from "./project";
import { Secrets } from "./secrets";
import "./settings.css";

const TABS = [
  { name: "project", title: "Project", Tab: ProjectView },
  { name: "keys", title: "API keys", Tab: Keys },
  { name: "secrets", title: "Secrets", Tab: Secrets },
  { name: "budgets", title: "Budgets", Tab: Budgets },
  { name: "providers", title: "Providers", Tab: ProvidersView },
  { name: "audit", title: "Audit log", Tab: Audit },
] as const;

export function Settings() {
  const tab = TABS.find((one) => one.name === route.value.id) ?? TABS[0];
  const tabs = useRef<HTMLElement>(null);
  useEffect(() => tabs.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [tab]);
  return (
    <div class="settings">
      <h1>Settings</h1>
      <nav ref={tabs} class="tabs" aria-label="Of the settings">
        {TABS.map((one) => <a key={one.name} href={href("settings", one.name === "project" ? null : one.name)} aria-current={one === tab ? "page" : undefined}>{one.title}</a>)}
      </nav>
      <tab.Tab />
    </div>
  );
}
