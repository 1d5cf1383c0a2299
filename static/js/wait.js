// A page whose figures are being computed looks again by itself; without scripts its link does.

setTimeout(() => location.reload(), 3000);
