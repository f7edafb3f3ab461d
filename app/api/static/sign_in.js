// Signing in with a key, where the service asks for one. The cookie that follows is not readable from here.

import { api, ApiError } from "./api.js";
import { byId } from "./dom.js";

const dialog = byId("sign-in");
const field = byId("key");
const trouble = byId("sign-in-trouble");
const signOut = byId("sign-out");
let asked = null;
let done = null;

/** Resolves once the reader has signed in; however many ask, there is one panel. */
export function askForKey() {
  asked ??= new Promise((resolve) => {
    done = resolve;
    dialog.showModal();
    field.focus();
  });
  return asked;
}

// Without a key there is nothing to see behind it.
dialog.addEventListener("cancel", (event) => event.preventDefault());

byId("sign-in-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  trouble.hidden = true;
  try {
    await api.signIn(field.value.trim());
  } catch (error) {
    const wrong = error instanceof ApiError && (error.status === 401 || error.status === 403);
    trouble.textContent = wrong ? "The service does not know this key." : error.message;
    trouble.hidden = false;
    field.select();
    return;
  }
  field.value = "";
  remember(true);
  dialog.close();
  asked = null;
  done();
});

signOut.addEventListener("click", async () => {
  await api.signOut();
  remember(false);
  location.hash = "";
  location.reload();
});

/** Whether there is a session to leave: the cookie itself is hidden from scripts. */
function remember(signedIn) {
  signOut.hidden = !signedIn;
  if (signedIn) localStorage.setItem("earlybyte.signed-in", "yes");
  else localStorage.removeItem("earlybyte.signed-in");
}

signOut.hidden = localStorage.getItem("earlybyte.signed-in") !== "yes";
