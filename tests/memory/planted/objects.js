// Grows V8's own heap: objects kept in an array.
const seconds = Number(process.env.SECONDS || "4"), kept = [];
let count = 0;
const timer = setInterval(() => {
  for (let n = 0; n < 12000; n++) { kept.push({ number: n, name: "item " + n }); }
  if (++count >= 100) { clearInterval(timer); }
}, (seconds * 1000) / 100);
