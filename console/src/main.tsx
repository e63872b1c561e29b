// Start the console.
import { render } from "preact";
import { App } from "./app";
import { startLive } from "./live";
import { startKeyboard } from "./parts/keyboard";

startKeyboard();
startLive();
const root = document.getElementById("app");
if (root) render(<App />, root);
