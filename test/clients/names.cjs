// Loaded before a client (node --require) in place of a name server that knows the domain of the node under
// test: that and every name below it is this machine. Nothing else about the client is changed.
"use strict";
const dns = require("dns");
const lookup = dns.lookup;
dns.lookup = (name, options, done) => {
  const own = name === "panda.test" || name.endsWith(".panda.test");
  return lookup(own ? "127.0.0.1" : name, options, done);
};
