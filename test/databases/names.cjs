// Loaded before a client (node --require) in place of a name server that knows the domain of the databases under test:
// names below it are the address LAB_ADDRESS. Nothing else about the client is changed.
"use strict";
const dns = require("dns");
const lookup = dns.lookup;
dns.lookup = (name, options, done) =>
	lookup(name.endsWith(".db.test") ? process.env.LAB_ADDRESS : name, options, done);
