#!lua flags=allow-oom
-- Lets a session go. The fence becomes one that nobody has: neither a late write nor a renewal
-- that was on its way may hold the session up.
-- ARGV: prefix, session, token, message for the other processes or ''
if not refusal(ARGV[2], ARGV[3]) then
  give_back(ARGV[2], ARGV[3])
  redis.call('SET', key('fence', ARGV[2]), '-' .. ARGV[3], 'KEEPTTL')
  if ARGV[4] ~= '' then
    redis.call('PUBLISH', PREFIX .. ':control', ARGV[4])
  end
end
