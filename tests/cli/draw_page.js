// Draws the page of `penstock bench --html` without a browser: node draw_page.js PAGE. Prints, as JSON, for each chart the
// text of its drawing and the text beside it. Only what the page's script asks of a document is here.
"use strict";
const page = require("fs").readFileSync(process.argv[2], "utf8");
const [, data, script] = page.match(/id="bench">([^]*?)<\/script>\s*<script>([^]*?)<\/script>/);

const all = [];
class Thing {
  constructor(name) {
    this.name = name;
    this.children = [];
    this.clientWidth = 900;
    all.push(this);
  }
  setAttribute() {}
  append(...more) { this.children.push(...more); }
  prepend(...more) { this.children.unshift(...more); }
  remove() {}
  get textContent() { return this.children.map(child => child instanceof Thing ? child.textContent : String(child)).join(" "); }
  set textContent(text) { this.children = [text]; }
}
const named = {bench: new Thing("script")};
named.bench.textContent = data;
const document = {
  createElement: name => new Thing(name),
  createElementNS: (_, name) => new Thing(name),
  getElementById: id => named[id] ??= new Thing(id),
  querySelectorAll: name => all.filter(thing => thing.name === name),
};
new Function("document", "addEventListener", script)(document, () => {});
console.log(JSON.stringify(document.querySelectorAll("figure").map(figure => ({
  drawing: figure.chart.textContent,
  beside: figure.children.filter(child => child !== figure.chart).map(child => child.textContent).join(" "),
}))));
