// Loads the cards of tables one after the other, and the page again when something has changed.
"use strict";
(() => {
  const fetchText = async (address) => {
    const answer = await fetch(address, { cache: "no-store" });
    return answer.ok || answer.status < 500 ? answer.text() : Promise.reject(new Error(answer.status));
  };

  const loadCards = async (root) => {
    const cards = [...root.querySelectorAll("article[data-load]")];
    const worker = async () => {
      for (let card = cards.shift(); card; card = cards.shift()) {
        try {
          const text = await fetchText(card.dataset.load);
          const place = card.querySelector(".load");
          if (place && place.innerHTML !== text) place.innerHTML = text;
          card.classList.add("loaded");
        } catch (error) {
          card.classList.add("loaded");
        }
      }
    };
    await Promise.all([worker(), worker()]);
  };

  // Cards of tables that are still there stay as they are until they are loaded again.
  const followTables = async (grid, fresh) => {
    const known = new Map([...grid.children].map((card) => [card.dataset.load, card]));
    const next = fresh.querySelector(".grid");
    if (next) grid.replaceChildren(...[...next.children].map((card) => known.get(card.dataset.load) || card));
    const count = document.querySelector(".headline h2"), fresher = fresh.querySelector(".headline h2");
    if (count && fresher && count.innerHTML !== fresher.innerHTML) count.replaceChildren(...fresher.childNodes);
    await loadCards(document);
  };

  // Elements of the same place are replaced where they differ.
  const follow = async (isNew) => {
    const text = await fetchText(location.href);
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const grid = document.querySelector(".grid");
    const ids = grid ? ["live", "empty", "runs"] : ["content"];
    for (const id of ids) {
      const now = document.getElementById(id), next = fresh.getElementById(id);
      if (now && next && now.innerHTML !== next.innerHTML) {
        const open = new Set([...now.querySelectorAll("details[open]")].map((one) => one.id));
        now.replaceChildren(...next.childNodes);
        now.querySelectorAll("details").forEach((one) => { if (one.id && open.has(one.id)) one.open = true; });
      }
    }
    const mark = document.querySelector("header .top"), fresher = fresh.querySelector("header .top");
    if (mark && fresher && mark.innerHTML !== fresher.innerHTML) mark.replaceChildren(...fresher.childNodes);
    if (grid && isNew) await followTables(grid, fresh);
  };

  const main = document.querySelector("main[data-pulse]");
  const beat = document.getElementById("beat");
  let last = null;
  const watch = async () => {
    if (!document.hidden) {
      try {
        const now = await fetchText(main.dataset.pulse);
        const isNew = last !== null && now !== last;
        // A run under way is shown with its time, which goes on without anything new.
        if (isNew || document.querySelector("#live section")) await follow(isNew);
        last = now;
        if (beat) beat.textContent = "";
      } catch (error) {
        if (beat) beat.textContent = " · no answer; is it still running?";
      }
    }
    setTimeout(watch, document.querySelector("#live section") ? 1000 : 2500);
  };
  loadCards(document).then(() => { document.body.dataset.ready = "yes"; });
  if (main) watch();
})();
