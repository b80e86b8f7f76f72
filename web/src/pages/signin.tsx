// SPDX-License-Identifier: Apache-2.0
import { useState } from "preact/hooks";
import { Problem, signIn, whySignedOut } from "../api";
import { plain } from "../format";
import { useTitle } from "../ui";

export function SignIn({ problem: first }: { problem: string }) {
  useTitle("Sign in");
  const [problem, setProblem] = useState(first), [text, setText] = useState(""), [busy, setBusy] = useState(false);
  const enter = async (e: Event) => {
    e.preventDefault();
    setBusy(true);
    setProblem("");
    try {
      await signIn({ token: text.trim() });
    } catch (failed) {
      setProblem(failed instanceof Problem ? failed.message : String(failed));
      setBusy(false);
    }
  };
  return <main class="signin" id="main">
    <img src="icon.svg" alt="" width="48" height="48" />
    <h1>vrun</h1>
    {(problem || whySignedOut()) && <p class={problem ? "problem" : "note"} role="alert">{plain(problem || whySignedOut())}</p>}
    <p>Run <code>vctl dashboard</code> on the controller's machine: it prints a link that signs this browser in.</p>
    <form onSubmit={enter}>
      <label>Or paste a token of <code>vctl token create</code>
        <input type="password" autocomplete="off" spellcheck={false} required value={text} onInput={(e) => setText(e.currentTarget.value)} /></label>
      <button class="primary" disabled={busy}>Sign in</button>
    </form>
  </main>;
}
