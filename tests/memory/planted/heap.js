// Grows the heap of node: buffers kept in an array.
const seconds = Number(process.env.SECONDS || "4"), kept = [];
let count = 0;
const timer = setInterval(() => {
  kept.push(Buffer.alloc(1024 * 1024, 1));
  if (++count >= 120) { clearInterval(timer); }
}, (seconds * 1000) / 120);
