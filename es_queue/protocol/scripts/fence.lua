-- Prepended to each of the master's five scripts. KEYS[1] is the epoch, ARGV[1] the caller's token "<n>-<nonce>".
-- Accepted: a higher n than stored, the very same string, or nothing stored. A new one is stored first of all
-- writes, so that a server out of memory refuses the whole script before it has changed anything; the stored one
-- is left alone, so that a master at work can renew its lease although memory is short.
local function number_of(token)
  return tonumber(string.match(token, '^(%d+)%-') or '0')
end

local epoch = redis.call('GET', KEYS[1])
if epoch and epoch ~= ARGV[1] and number_of(ARGV[1]) <= number_of(epoch) then
  return redis.error_reply('FENCED another master holds this run')
end
-- It stays for 30 days, as all of a run does, and each publish begins them again: a master that was killed leaves nothing for ever.
if epoch ~= ARGV[1] then redis.call('SET', KEYS[1], ARGV[1], 'EX', 2592000) end

-- Arguments are read in order; a counted list is its length and then its items.
local position = 1
local function argument()
  position = position + 1
  return ARGV[position]
end
local function list()
  local items = {}
  for i = 1, tonumber(argument()) do items[i] = argument() end
  return items
end

local function in_pieces(command, key, items)
  for first = 1, #items, 1000 do
    redis.call(command, key, unpack(items, first, math.min(first + 999, #items)))
  end
end

-- A list's entries. A longer list than any of ours is removed, so that a script never delays every run on the server.
local function entries(key, longest)
  if redis.call('LLEN', key) <= longest then return redis.call('LRANGE', key, 0, -1) end
  redis.call('UNLINK', key)
  return {}
end

-- The ids in the run's set of workers; a larger set than any of ours is removed.
local function members(key)
  if redis.call('SCARD', key) <= 20000 then return redis.call('SMEMBERS', key) end
  redis.call('UNLINK', key)
  return {}
end

-- An own lease can be prolonged when memory is short; another one has to be written, with ``write``.
local function keep_lease(write, key, holder, milliseconds)
  if redis.call('GET', key) == holder then
    redis.call('PEXPIRE', key, milliseconds)
  else
    write('SET', key, holder, 'PX', milliseconds)
  end
end

-- Remove a publication's results and parameters.
local function close(prefix, publication)
  redis.call('UNLINK', prefix .. 'results:' .. publication, prefix .. 'parameters:' .. publication)
  for _, kind in ipairs({ 'results:', 'moments:' }) do
    local part = 0
    while redis.call('UNLINK', prefix .. kind .. publication .. ':' .. part) == 1 do part = part + 1 end
  end
end

-- Close the older publications of the asynchronous schedule: all but those in keep.
local function close_older(progress, prefix, keep)
  for publication in string.gmatch(redis.call('HGET', progress, 'open') or '', '%d+%.%d+%-%x+') do
    if not keep[publication] then close(prefix, publication) end
  end
end
