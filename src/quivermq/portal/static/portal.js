// Keeps a page fresh and sends its actions. Pages are made by the server; this replaces what changed.
"use strict";

(() => {
  const EVERY_MS = 2000;
  const JSON_HEADERS = { "Content-Type": "application/json", "X-Portal": "1" };

  // ---- Fresh parts: the same page again, and of it the elements with `data-live`.
  let failures = 0;

  async function refresh() {
    if (document.hidden || !document.querySelector("[data-live]") || document.querySelector('[data-retry="no"]')) return;
    const where = location.href;
    // A page without fresh parts of its own is not made again: it may have read 50,000 messages.
    const asked = document.querySelector("main [data-live]:not(#banner)") ? where : "/data/live";
    const answer = await fetch(asked, { headers: { "X-Portal": "1" } });
    if (answer.status === 401) return location.assign(`/login?to=${encodeURIComponent(location.pathname)}`);
    if (!answer.ok) {
      const told = await answer.json().catch(() => ({}));
      throw new Error(told.error || `the portal answers ${answer.status}`);
    }
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (where !== location.href) return;
    if (document.querySelector('[data-retry="yes"]')) return location.reload();
    for (const old of document.querySelectorAll("[data-live][id]")) {
      const found = fresh.getElementById(old.id);
      // What somebody has opened or chosen is not taken away from under them.
      if (found && !old.querySelector('[aria-expanded="true"], tbody :checked')) morph(old, found);
    }
    countSelected();
  }

  function morph(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== fresh.nodeType || old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
      old.replaceWith(fresh.cloneNode(true));
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
      return;
    }
    if (old.hasAttribute("data-keep") || old.contains(document.activeElement) && old.matches("input, select, textarea")) return;
    for (const { name, value } of [...fresh.attributes]) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name) && name !== "data-open") old.removeAttribute(name);
    const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
    after.forEach((child, n) => (before[n] ? morph(before[n], child) : old.append(child.cloneNode(true))));
    before.slice(after.length).forEach((child) => child.remove());
  }

  function showOffline(error) {
    const banner = document.getElementById("offline");
    if (!banner) return;
    failures += 1;
    // A request that was cut off is no news; an answer that says so is.
    if (failures < 2 && error instanceof TypeError) return;
    const text = error instanceof TypeError ? "The portal does not answer." : error.message;
    banner.querySelector("[data-offline-text]").textContent = `${text} Trying again…`;
    banner.hidden = false;
  }

  async function loop() {
    try {
      await refresh();
      await Charts.refresh();
      failures = 0;
      const banner = document.getElementById("offline");
      if (banner) banner.hidden = true;
    } catch (error) {
      showOffline(error);
    }
    setTimeout(loop, EVERY_MS);
  }

  // ---- Actions: forms and buttons with `data-act` are sent as JSON.
  async function act(path, given) {
    const answer = await fetch(path, { method: "POST", headers: JSON_HEADERS, body: JSON.stringify(given) });
    const told = await answer.json().catch(() => ({ error: `The portal answers ${answer.status}` }));
    if (answer.status === 401 && path !== "/login") location.assign("/login");
    if (!answer.ok) throw new Error(told.error || "That did not work");
    return told;
  }

  function toast(text, kind) {
    if (!text) return;
    const made = document.createElement("div");
    made.className = `toast ${kind || ""}`;
    made.textContent = text;
    document.getElementById("toasts").append(made);
    setTimeout(() => made.remove(), kind === "bad" ? 12000 : 6000);
  }

  function fieldsOf(form) {
    const given = form.dataset.with ? fieldsOf(document.querySelector(form.dataset.with)) : {};
    for (const [name, value] of new FormData(form)) {
      if (form.querySelector(`[name="${CSS.escape(name)}"][data-many]`)) (given[name] ??= []).push(value);
      else given[name] = value;
    }
    return given;
  }

  async function finish(told, form) {
    toast(told.message);
    if (told.to) return location.assign(told.to);
    if (told.answer !== undefined) {
      const answer = document.querySelector(form.dataset.answer);
      answer.textContent = told.answer;
      answer.hidden = false;
      return;
    }
    if (told.secret) {
      document.querySelector("[data-secret]").textContent = told.secret;
      document.getElementById("secret").showModal();
    }
    document.querySelectorAll("[data-selectable] :checked").forEach((each) => (each.checked = false));
    await refresh().catch(() => {});
  }

  document.addEventListener("submit", async (event) => {
    const form = event.target.closest("form[data-act]");
    if (!form) return;
    event.preventDefault();
    const fault = form.querySelector(".form-error");
    const buttons = [...form.querySelectorAll("button:not([type=button])")];
    if (fault) fault.hidden = true;
    buttons.forEach((each) => (each.disabled = true));
    try {
      const told = await act(form.dataset.act, fieldsOf(form));
      if (!form.hasAttribute("data-stay")) form.closest("dialog")?.close();
      await finish(told, form);
    } catch (error) {
      if (fault) {
        fault.textContent = error.message;
        fault.hidden = false;
      } else toast(error.message, "bad");
    } finally {
      buttons.forEach((each) => (each.disabled = false));
      checkNames(form);
    }
  });

  document.addEventListener("click", async (event) => {
    const at = (selector) => event.target.closest(selector);
    const opener = at("[data-open]");
    if (opener) return open(opener);
    if (at("[data-close]")) return at("dialog").close();
    const button = at("button[data-act]");
    if (button) {
      button.disabled = true;
      return act(button.dataset.act, JSON.parse(button.dataset.given || "{}"))
        .then((told) => finish(told, button))
        .catch((error) => toast(error.message, "bad"))
        .finally(() => (button.disabled = false));
    }
    const copier = at("[data-copy]");
    if (copier) return copy(document.getElementById(copier.dataset.copy).textContent);
    if (at("[data-theme-switch]")) return switchTheme();
    const row = at("tr[data-expands]");
    if (row && !at("a, button, input")) return expand(row);
    if (event.target.nodeName === "DIALOG") event.target.close();
  });

  // A dialog may be shared by many rows: the button that opens it has its fields.
  function open(opener) {
    const dialog = document.querySelector(opener.dataset.open);
    const form = dialog.querySelector("form");
    for (const [name, value] of Object.entries(JSON.parse(opener.dataset.fill || "{}"))) {
      if (form.elements[name]) form.elements[name].value = value;
      dialog.querySelectorAll(`[data-shows="${CSS.escape(name)}"]`).forEach((each) => (each.textContent = value));
      dialog.querySelectorAll(`[data-must-be-field="${CSS.escape(name)}"]`).forEach((each) => (each.dataset.mustBe = value));
    }
    if (form) {
      if (opener.dataset.to) form.dataset.act = opener.dataset.to;
      form.querySelectorAll("[data-must-be]").forEach((each) => (each.value = ""));
      const fault = form.querySelector(".form-error");
      if (fault) fault.hidden = true;
      checkNames(form);
    }
    dialog.showModal();
  }

  function checkNames(form) {
    const asked = form.querySelector("[data-must-be]");
    const button = form.querySelector("button.danger");
    if (asked && button) button.disabled = asked.value !== asked.dataset.mustBe;
  }

  document.addEventListener("input", (event) => {
    if (event.target.form) checkNames(event.target.form);
    if (event.target.matches("[data-all]")) {
      document.querySelectorAll(event.target.dataset.all).forEach((each) => (each.checked = event.target.checked));
    }
    if (event.target.closest("[data-selectable]")) countSelected();
  });

  function countSelected() {
    const chosen = document.querySelectorAll("[data-selectable] tbody input:checked").length;
    document.querySelectorAll("[data-selected]").forEach((each) => (each.textContent = chosen));
    document.querySelectorAll("[data-needs-selected]").forEach((each) => (each.disabled = !chosen));
  }

  document.addEventListener("change", (event) => {
    if (event.target.matches("[data-submits]")) event.target.form.requestSubmit();
  });

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      toast("Copied");
    } catch {
      toast("The browser does not allow copying here: select the text instead", "bad");
    }
  }

  function expand(row) {
    const detail = row.nextElementSibling;
    detail.hidden = !detail.hidden;
    row.setAttribute("aria-expanded", !detail.hidden);
  }

  function switchTheme() {
    const root = document.documentElement;
    const dark = root.dataset.theme === "dark" || (root.dataset.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
    root.dataset.theme = dark ? "light" : "dark";
    act("/theme", { theme: root.dataset.theme }).catch(() => {});
  }

  // ---- Following a partition: asks for what is newer, and the portal answers when there is.
  async function follow(list) {
    let failed = 0;
    while (list.isConnected && list.dataset.follow) {
      try {
        const answer = await fetch(list.dataset.follow, { headers: { "X-Portal": "1" } });
        if (!answer.ok) throw new Error((await answer.json()).error);
        failed = 0;
        const told = await answer.json();
        list.dataset.follow = told.next;
        const rows = document.createElement("tbody");
        rows.innerHTML = told.rows;
        const body = list.querySelector("tbody");
        body.prepend(...rows.childNodes);
        while (body.rows.length > 2 * 200) body.rows[body.rows.length - 1].remove();
        document.querySelector("[data-follow-text]").textContent = told.text;
      } catch (error) {
        failed += 1;
        document.querySelector("[data-follow-text]").textContent = `${error.message || "The portal does not answer"}. Trying again…`;
        await new Promise((done) => setTimeout(done, Math.min(8000, 500 * 2 ** failed)));
      }
    }
  }

  document.querySelectorAll("[data-follow]").forEach(follow);
  document.querySelectorAll("[data-opens-now]").forEach((each) => each.showModal());
  countSelected();
  loop();
})();
