/** A budget as a bar, and in words. Pure. */

import type { Budget } from "./shapes";

export interface BudgetBar {
  spent: number; // shares of the bar
  foreseen: number;
  most: number; // where the amount is; 1: at its end
}

/** The bar is as long as the amount, or longer where more is spent or foreseen. */
export function barOf({ amount, spent, foreseen }: Pick<Budget, "amount" | "spent" | "foreseen">): BudgetBar {
  const end = Math.max(amount, spent, Math.min(foreseen, 1.5 * amount));
  if (end <= 0) return { spent: 1, foreseen: 1, most: 1 }; // nothing may be spent: used up from the start
  return { spent: spent / end, foreseen: Math.min(1, foreseen / end), most: amount / end };
}

/** "A day at vast, jobs of the key ci". */
export function whatOf(budget: Pick<Budget, "scope" | "period" | "provider">, key: string | null): string {
  const period = { hour: "An hour", day: "A day", month: "A month" }[budget.period];
  const parts = [budget.scope === "installation" && " of all projects", budget.provider && ` at ${budget.provider}`, key && `, jobs of the key ${key}`];
  return period + parts.filter(Boolean).join("");
}
