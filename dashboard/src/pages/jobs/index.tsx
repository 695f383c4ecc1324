import { route } from "../../route";
import { Job } from "../job";
import { JobList } from "./list";

/** The list, or one of it: both are below the same address. */
export function Jobs() {
  const { id } = route.value;
  return id ? <Job key={id} id={id} /> : <JobList />;
}
