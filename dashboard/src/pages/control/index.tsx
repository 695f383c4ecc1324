/** What the control loop sees and chooses, and whether the service does its work. */

import { route } from "../../route";
import { OneDecision } from "./decision";
import { Overview } from "./overview";
import "./control.css";

export function Control() {
  const { id } = route.value;
  return id ? <OneDecision key={id} id={id} /> : <Overview />;
}
