import { render } from "preact";

import { App } from "./app";
import "./styles/base.css";
import "./styles/controls.css";
import "uplot/dist/uPlot.min.css";

render(<App />, document.getElementById("app")!);
