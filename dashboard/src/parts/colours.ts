/** Colours of the style sheet as a canvas needs them: resolved, since it knows neither variables nor light-dark(). */

import { signal } from "@preact/signals";

export const LINES = ["--link", "--conventional", "--serverless", "--good", "--bad", "--marketplace", "--wait", "--faint"] as const;

const darkness = matchMedia("(prefers-color-scheme: dark)");
/** True while dark colours are in use; who draws on a canvas draws anew when it changes. */
export const dark = signal(darkness.matches);
darkness.addEventListener("change", () => (dark.value = darkness.matches));

export function colour(within: HTMLElement, variable: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${variable})`;
  within.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export function lineColour(at: number): string {
  return LINES[at % LINES.length]!;
}
