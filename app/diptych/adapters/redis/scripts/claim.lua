#!lua flags=allow-oom
-- Takes a session that has work and that nobody holds.
-- ARGV: prefix, session, token, server, lease ms
local session, token = ARGV[2], ARGV[3]
if redis.call('LLEN', key('queue', session)) == 0 then
  redis.call('SREM', PREFIX .. ':active', session)
  return 0
end
local holder = redis.call('GET', key('lease', session))
if holder then
  return holder == token and 1 or 0
end
redis.call('SET', key('lease', session), token, 'PX', ARGV[5])
redis.call('SET', key('fence', session), token)
take_up(session, ARGV[4])
return 1
