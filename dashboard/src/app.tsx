/** The frame around every page: who is signed in, where one can go, and the page of the present address. */

import { useEffect } from "preact/hooks";

import { session, readSession, signOut } from "./api/session";
import { announce, Announcer } from "./parts/announcer";
import { Failure } from "./parts/failure";
import { Loading } from "./parts/loading";
import { route, href } from "./route";
import { PAGES, pageOf } from "./pages";
import { SignIn } from "./pages/sign-in";

export function App() {
  useEffect(() => void readSession(), []);
  const state = session.value;
  if (state.kind === "unknown") return <main><Loading what="Looking who you are" /></main>;
  if (state.kind === "out") return <SignIn />;
  if (state.kind === "failed") return <main><Failure error={state.error} again={() => void readSession()} /></main>;
  const here = route.value;
  const page = pageOf(here.name);
  return (
    <div class="frame">
      <a class="skip" href="#content" onClick={skip}>Skip to the content</a>
      <header>
        <a class="brand" href={href("jobs")}>Allpass</a>
        <nav aria-label="Pages">
          {PAGES.filter((one) => one.title).map((one) => (
            <a key={one.name} href={href(one.name)} aria-current={one === page ? "page" : undefined}>{one.title}</a>
          ))}
        </nav>
        <span class="who" title={`key ${state.session.key_name}`}>{state.session.project_name}</span>
        <button type="button" class="quiet" onClick={() => void leave()}>Sign out</button>
      </header>
      <main id="content" tabIndex={-1}>
        <page.Page />
      </main>
      <Announcer />
    </div>
  );
}

async function leave() {
  try {
    await signOut();
  } catch (error) {
    announce(`You are still signed in: ${(error as Error).message}`);
  }
}

/** The address after # is the page's, so a link to #content would leave it: the focus is moved by hand. */
function skip(event: Event) {
  event.preventDefault();
  document.getElementById("content")?.focus();
}
