#!lua flags=allow-oom
-- Claims a session that has unfinished runs and no owner.
-- ARGV: prefix, session, token, server, lease ms
local session, token = ARGV[2], ARGV[3]
if redis.call('LLEN', key('queue', session)) == 0 then
  redis.call('SREM', PREFIX .. ':active', session)
  return 0
end
local owner = redis.call('GET', key('lease', session))
if owner then
  return owner == token and 1 or 0
end
note_death(session)
redis.call('SET', key('lease', session), token, 'PX', ARGV[5])
redis.call('SET', key('fence', session), token)
first_run(session, ARGV[4])
return 1
