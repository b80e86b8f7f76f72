// SPDX-License-Identifier: Apache-2.0
// The S3 server of the tests: s3rver, an S3 server from the npm registry, which keeps its buckets in a directory. It
// accepts any SigV4 signature, so each is checked here first, by what aws4 (another implementation than ours) makes of
// the same request: signature, access key, expiry, clock, region.
//
//   node server.js --directory DIR --bucket NAME [--address A] [--port N] [--access-key K] [--secret-key S]
//                  [--region R] [--tls-key FILE --tls-cert FILE] [--host-style SERVICE_HOST]
//
// Writes "ready PORT" on stdout once it listens. GET /-/counts on it tells how often each method was answered. Ends with
// its stdin. While DIR/lose-answers-to is there, what is put under a name with that text in it is kept and not answered.
'use strict';
const fs = require('fs');
const http = require('http');
const https = require('https');
const aws4 = require('aws4');
const S3rver = require('s3rver');
const account = require('s3rver/lib/models/account').DUMMY_ACCOUNT;

const options = { address: '127.0.0.1', port: '0', 'access-key': 'TESTACCESS', 'secret-key': 'test/secret+key',
                  region: 'us-east-1' };
for (let i = 2; i < process.argv.length; i += 2) options[process.argv[i].slice(2)] = process.argv[i + 1];
account.createKeyPair(options['access-key'], options['secret-key']);
const keys = { accessKeyId: options['access-key'], secretAccessKey: options['secret-key'] };

// What is wrong with the signature: [status, code]; null: nothing.
function refusal(req) {
  const url = new URL(req.url, 'http://any');
  const presigned = url.searchParams.has('X-Amz-Signature');
  const header = /Credential=([^,]+), *SignedHeaders=([^,]+), *Signature=([0-9a-f]+)/.exec(req.headers.authorization || '');
  if (!presigned && !header) return [403, 'AccessDenied'];
  const credential = (presigned ? url.searchParams.get('X-Amz-Credential') : header[1]).split('/');
  if (credential[0] !== keys.accessKeyId) return [403, 'InvalidAccessKeyId'];
  if (credential[2] !== options.region) return [400, 'AuthorizationHeaderMalformed'];
  const date = presigned ? url.searchParams.get('X-Amz-Date') : req.headers['x-amz-date'];
  const time = Date.parse((date || '').replace(/^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/, '$1-$2-$3T$4:$5:$6Z'));
  if (!(Math.abs(time - Date.now()) < 15 * 60000)) return [403, 'RequestTimeTooSkewed'];
  if (presigned && time + 1000 * url.searchParams.get('X-Amz-Expires') < Date.now()) return [403, 'AccessDenied'];

  const signed = { method: req.method, service: 's3', region: credential[2], headers: {} };
  const names = (presigned ? url.searchParams.get('X-Amz-SignedHeaders') : header[2]).split(';');
  for (const name of names) signed.headers[name] = req.headers[name];
  if (presigned) {
    const query = req.url.slice(req.url.indexOf('?') + 1).split('&');
    const given = query.filter(p => p.startsWith('X-Amz-Signature='))[0].slice(16);
    signed.path = url.pathname + '?' + query.filter(p => !p.startsWith('X-Amz-Signature=')).join('&');
    signed.signQuery = true;
    const expected = /X-Amz-Signature=([0-9a-f]+)/.exec(aws4.sign(signed, keys).path)[1];
    return expected === given ? null : [403, 'SignatureDoesNotMatch'];
  }
  signed.path = req.url;
  const expected = /Signature=([0-9a-f]+)/.exec(aws4.sign(signed, keys).headers.Authorization)[1];
  return expected === header[3] ? null : [403, 'SignatureDoesNotMatch'];
}

function loses(url) {
  try {
    return url.includes(fs.readFileSync(options.directory + '/lose-answers-to', 'utf8'));
  } catch {
    return false;
  }
}

const counts = {};
const store = new S3rver({
  directory: options.directory, silent: true, vhostBuckets: true,
  serviceEndpoint: options['host-style'] || 'amazonaws.com',
  configureBuckets: [{ name: options.bucket }],
});

async function main() {
  await store.configureBuckets();
  const serve = store.callback();
  const handler = (req, res) => {
    if (req.url === '/-/counts') return res.end(JSON.stringify(counts));
    const wrong = refusal(req);
    counts[wrong ? 'refused' : req.method] = (counts[wrong ? 'refused' : req.method] || 0) + 1;
    if (!wrong && req.method === 'PUT' && loses(req.url)) {
      res.write = () => true;
      res.end = () => { req.socket.destroy(); };
    }
    if (!wrong) return serve(req, res);
    req.resume();
    res.writeHead(wrong[0], { 'Content-Type': 'application/xml' });
    res.end(`<?xml version="1.0"?><Error><Code>${wrong[1]}</Code><Message>refused</Message></Error>`);
  };
  const tls = options['tls-key'] && { key: fs.readFileSync(options['tls-key']), cert: fs.readFileSync(options['tls-cert']) };
  const server = tls ? https.createServer(tls, handler) : http.createServer(handler);
  server.keepAliveTimeout = 60000;
  server.listen(Number(options.port), options.address, () => console.log(`ready ${server.address().port}`));
  process.stdin.resume();
  process.stdin.on('end', () => process.exit(0));
}
main().catch(e => { console.error(e); process.exit(1); });
