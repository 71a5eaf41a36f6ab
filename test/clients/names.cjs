// Loaded before a client (node --require) on a machine whose resolver does not know that localhost and every
// name below it is the machine itself, as RFC 6761 has it. Nothing else about the client is changed.
"use strict";
const dns = require("dns");
const lookup = dns.lookup;
dns.lookup = (name, options, done) => {
  const own = name === "localhost" || name.endsWith(".localhost");
  return lookup(own ? "127.0.0.1" : name, options, done);
};
