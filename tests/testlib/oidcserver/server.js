// SPDX-License-Identifier: Apache-2.0
// The identity provider of the tests: oidc-provider from the npm registry, with the device flow. Whoever logs in is who
// he says; the pages that people see are those of oidc-provider.
//
//   node server.js --port N --people FILE [--issuer URL] [--code-seconds S] [--algorithm RS256|ES256]
//
// FILE: JSON, claims by login. --issuer: what it calls itself, if not http://127.0.0.1:N. Writes "ready" on stdout once it
// listens. Ends with its stdin.
'use strict';
const crypto = require('crypto');
const fs = require('fs');

const options = { 'code-seconds': '60', algorithm: 'RS256' };
for (let i = 2; i < process.argv.length; i += 2) options[process.argv[i].slice(2)] = process.argv[i + 1];
const people = JSON.parse(fs.readFileSync(options.people));

function key(type, parameters, alg) {
  const { privateKey } = crypto.generateKeyPairSync(type, parameters);
  return { ...privateKey.export({ format: 'jwk' }), alg, use: 'sig', kid: alg };
}
const client = (id) => ({ client_id: id, token_endpoint_auth_method: 'none', application_type: 'native', response_types: [],
                          redirect_uris: [], grant_types: ['urn:ietf:params:oauth:grant-type:device_code'],
                          id_token_signed_response_alg: options.algorithm });

(async () => {
  const { Provider } = await import('oidc-provider');
  const provider = new Provider(options.issuer || `http://127.0.0.1:${options.port}`, {
    clients: [client('vrun'), client('other')],
    jwks: { keys: [key('rsa', { modulusLength: 2048 }, 'RS256'), key('ec', { namedCurve: 'P-256' }, 'ES256')] },
    cookies: { keys: ['test'] },
    features: { deviceFlow: { enabled: true }, devInteractions: { enabled: true } },
    conformIdTokenClaims: false,   // all claims are in the ID token, as most providers do it
    claims: { openid: ['sub'], profile: ['preferred_username', 'email'], groups: ['groups'] },
    scopes: ['openid', 'profile', 'groups'],
    ttl: { DeviceCode: Number(options['code-seconds']), Interaction: 600, Grant: 600, Session: 600 },
    findAccount: (ctx, id) => ({ accountId: id, claims: () => ({ sub: id, preferred_username: id, ...people[id] }) }),
  });
  provider.listen(Number(options.port), '127.0.0.1', () => console.log('ready'));
  process.stdin.on('end', () => process.exit(0)).resume();
})();
